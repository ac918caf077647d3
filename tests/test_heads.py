"""Configs of all heads train a step and predict; those without published scores claim none."""

import pytest
import torch
from helpers.paths import ROOT
from helpers.small_models import first_batch, read, tiny
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

from xcit_mm.checks.doctor import diagnose

# Learning rates of backbone and heads, and weight decay.
ADAMW = dict(
    cascade_rcnn=(1e-4, 1e-4, 0.05),
    mask2former=(1e-5, 1e-4, 0.05),
    retinanet=(1e-4, 1e-4, 1e-4),
    segformer=(6e-5, 6e-4, 0.01),
)
LEAVES = sorted(path for folder in ADAMW for path in (ROOT / "configs" / folder).glob("*.py"))
every_leaf = pytest.mark.parametrize("leaf", LEAVES, ids=lambda path: path.stem)
PUBLISHED = [
    next((ROOT / "configs" / task).glob("*t12-p16*.py"))
    for task in ("mask_rcnn", "semantic_fpn", "upernet")
]


def assert_prediction(sample: object, size: tuple[int, int]) -> None:
    """Check that a prediction is of the image's size."""
    if "pred_sem_seg" in sample:
        assert sample.pred_sem_seg.data.shape == (1, *size)
        return
    instances = sample.pred_instances
    assert len(instances) > 0
    assert instances.bboxes.shape == (len(instances), 4)
    assert instances.scores.isfinite().all()
    if "masks" in instances:
        assert instances.masks.shape == (len(instances), *size)


@every_leaf
def test_a_leaf_claims_no_score_and_passes_the_doctor_but_for_its_data(leaf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backbone = read(leaf).model.backbone
    assert (backbone.type, backbone.arch, backbone.patch_size) == ("XCiT", "s12", 16)
    assert "_xcit-s12-p16_" in leaf.stem and backbone.drop_path_rate == 0.05
    assert backbone.init_cfg.checkpoint == "xcit://xcit_small_12_p16_384_dist"
    assert leaf.read_text().startswith("# No score has been published or measured.\n")
    failures = [finding for finding in diagnose(str(leaf)) if finding.level == "FAIL"]
    assert [finding.code for finding in failures] == ["D311", "D311"]


@every_leaf
def test_rates_and_decay_are_those_of_the_recipe(leaf):
    recipe = leaf.parent.name
    cfg = read(leaf)
    cfg.optim_wrapper.type = "OptimWrapper"  # mixed precision needs a GPU
    with torch.device("meta"):
        model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    group_of = {id(p): group for group in groups for p in group["params"]}
    backbone_rate, head_rate, decay = ADAMW[recipe]
    norms = [m for m in model.modules() if isinstance(m, (nn.LayerNorm, nn.GroupNorm))]
    of_norms = {id(p) for norm in norms for p in norm.parameters()}
    for name, p in model.named_parameters():
        is_pretrained = name.startswith("backbone.")
        has_decay = "norm" not in name
        if recipe == "mask2former":
            embeddings = ("query_embed", "query_feat", "level_embed")
            if not is_pretrained:
                has_decay = id(p) not in of_norms and not any(part in name for part in embeddings)
            is_pretrained = is_pretrained and not name.startswith("backbone.fpn")
        rate = backbone_rate if is_pretrained else head_rate
        group = group_of[id(p)]
        assert group["lr"] == pytest.approx(rate), name
        assert group["weight_decay"] == (decay if has_decay else 0.0), name


# What no other quick test trains; mask2former of COCO is quicker than that of ADE20K.
QUICK = ("mask2former_xcit-s12-p16_8xb2-lsj-50e_coco", "retinanet", "segformer", "upernet")


@pytest.mark.forks
@pytest.mark.parametrize(
    "leaf",
    [
        pytest.param(path, marks=() if path.stem.startswith(QUICK) else pytest.mark.slow)
        for path in (*LEAVES, *PUBLISHED)
    ],
    ids=lambda path: path.stem,
)
def test_a_step_trains_every_parameter_and_the_model_predicts(leaf, shapes):
    cfg = tiny(leaf, shapes)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    reached = set()
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))
    batch = first_batch(cfg.train_dataloader)
    losses = model.train().train_step(batch, build_optim_wrapper(model, cfg.optim_wrapper))
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, initial[name])}
    assert all(loss.isfinite().all() for loss in losses.values())
    # On several GPUs torch stops at a parameter without gradient.
    assert reached == initial.keys()
    parts = {name for name, part in model.named_children() if list(part.parameters())}
    assert {name.split(".")[0] for name in changed} == parts
    assert {name for name in reached if name.startswith("backbone.")} <= changed

    model.eval()
    with torch.no_grad():
        (sample,) = model.test_step(first_batch(cfg.test_dataloader))
    assert_prediction(sample, (96, 96))
    merges_views = cfg.model.type in ("RetinaNet", "EncoderDecoder")  # mmdet merges no masks
    assert ("tta_pipeline" in cfg) == merges_views
    if merges_views:
        init_default_scope(cfg.default_scope)
        views = DATASETS.build(dict(cfg.test_dataloader.dataset, pipeline=cfg.tta_pipeline))[0]
        tta_model = MODELS.build(dict(**cfg.tta_model, module=model))
        with torch.no_grad():
            (sample,) = tta_model.test_step(pseudo_collate([views]))
        assert len(views["inputs"]) in (6, 12)
        assert_prediction(sample, (96, 96))
