"""How far the gradients of a model are from those of another."""


def errors(values: dict, expected: dict) -> dict[str, float]:
    """Return the errors of gradients, relative to each; both must have the same."""
    assert [name for name in expected if (values[name] is None) != (expected[name] is None)] == []
    return {
        name: float((values[name].double() - other.double()).norm() / other.double().norm())
        for name, other in expected.items()
        if other is not None
    }


def worst_error(values: dict, expected: dict) -> float:
    return max(errors(values, expected).values())
