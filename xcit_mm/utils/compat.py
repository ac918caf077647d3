"""Private names of other libraries that this package uses or replaces, each with the reason and a version."""

__all__ = ["gdal_errors"]


def gdal_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that rasterio raises for errors of GDAL.

    Writing and closing raise GDAL's own errors unwrapped, whose base class rasterio does not export (rasterio 1.4.4).
    """
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    return RasterioError, CPLE_BaseError
