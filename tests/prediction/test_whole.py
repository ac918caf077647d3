"""A whole image by bands and windows has the prediction of the whole image in memory."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers.perfect_detector import CLASSES, NO_FAULTS, Scene, detect, judge
from helpers.small_models import build, mask_rcnn, retinanet, semantic_fpn, synthetic_photo, upernet

from xcit_mm import Predictor
from xcit_mm.models import labels as labels_module
from xcit_mm.models import large
from xcit_mm.prediction import Prediction
from xcit_mm.prediction import whole as whole_module
from xcit_mm.prediction.sources import ImageSource
from xcit_mm.prediction.view import View
from xcit_mm.prediction.whole import SeenWhole, check_whole, is_exact_whole


@pytest.fixture(autouse=True)
def short_bands(monkeypatch):
    """Bands of 8 rows of tokens."""
    monkeypatch.setattr(large, "CPU_TOKENS", 1)


def psp_net():
    """PSPNet over the coarsest map of an FPN."""
    cfg = semantic_fpn()
    head = cfg.model.decode_head
    cfg.model.decode_head = dict(
        type="PSPHead",
        in_channels=head.in_channels[-1],
        in_index=3,
        channels=16,
        num_classes=5,
        norm_cfg=dict(type="BN"),
        align_corners=False,
        loss_decode=head.loss_decode,
    )
    return cfg


@cache
def model_of(recipe):
    cfg = recipe()
    if recipe is mask_rcnn:
        cfg.model.test_cfg.rcnn.max_per_img = 10
    pipeline = cfg.test_dataloader.dataset.pipeline
    pipeline[:] = [step for step in pipeline if step.type != "Resize"]
    return build(cfg), cfg


@cache
def predictor_of(recipe, **options) -> Predictor:
    """Of images at their own size."""
    return Predictor(*model_of(recipe), **options)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return synthetic_photo(448, 416)


@pytest.fixture(scope="module")
def valid() -> np.ndarray:
    """A frame of no data, not in whole cells."""
    mask = np.zeros((448, 416), bool)
    mask[20:400, 30:] = True
    return mask


@pytest.mark.parametrize("window", [128, 256])
@pytest.mark.parametrize("recipe", [semantic_fpn, upernet, psp_net])
def test_a_map_is_that_of_the_image_in_memory(recipe, window, photo, valid):
    whole = predictor_of(recipe, whole=True, window=window)
    in_memory = predictor_of(recipe)
    expected = in_memory(photo).segmentation
    assert len(np.unique(expected)) > 2
    assert (whole(photo).segmentation == expected).mean() > 0.999
    # Rounding decides between equal logits.
    is_same = whole(photo, valid).segmentation == in_memory(photo, valid).segmentation
    assert is_same[valid].mean() > 0.999


def test_a_window_of_a_map_is_that_of_the_whole_map(photo):
    predictor = predictor_of(semantic_fpn, whole=True, window=128)
    with predictor.see(photo) as image:
        everything = image.result()
        part = image.predict(slice(100, 301), slice(-250, None))
        with pytest.raises(
            ValueError, match="of 448 pixels: give a part inside them, without a step"
        ):
            image.predict(slice(500, 600), slice(None))
        with pytest.raises(
            ValueError, match="of 448 pixels: give a part inside them, without a step"
        ):
            image.predict(slice(0, 100, 2), slice(None))
    assert np.array_equal(part.segmentation, everything.segmentation[100:301, -250:])
    assert np.array_equal(part.image, photo[100:301, -250:])
    with pytest.raises(ValueError, match="is closed: predict inside the block `with"):
        image.result()


def test_two_threads_predict_what_one_does(photo, valid):
    whole = predictor_of(semantic_fpn, whole=True, window=256)
    in_memory = predictor_of(semantic_fpn)
    calls = [(whole, photo), (whole, photo[::-1]), (in_memory, photo, valid), (in_memory, photo)]
    calls *= 3
    expected = [call[0](*call[1:]).segmentation for call in calls]
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(call[0], *call[1:]) for call in calls]
    for future, labels in zip(futures, expected, strict=True):
        assert np.array_equal(future.result().segmentation, labels)


@pytest.mark.parametrize("window", [dict(whole=True, window=256), dict(tile=200)])
@pytest.mark.parametrize("scale", [0.3, 1.7, 2])
def test_each_pixel_has_the_class_of_its_centre_at_any_scale(scale, window, photo):
    with predictor_of(semantic_fpn, scale=scale, **window).see(photo[:201, :99]) as image:
        everything = image.result().segmentation
        part = image.predict(slice(70, None), slice(3, 98)).segmentation
        height, width = image.resized.height, image.resized.width
        with predictor_of(semantic_fpn, scale=1, **window).see(
            image.resized.read(slice(0, height), slice(0, width))[0]
        ) as resized:
            labels = resized.result().segmentation
    rows = ((np.arange(201) + 0.5) * (height / 201)).astype(int)
    columns = ((np.arange(99) + 0.5) * (width / 99)).astype(int)
    if "whole" in window:
        assert np.array_equal(everything, labels[rows][:, columns])
    assert np.array_equal(part, everything[70:, 3:98])


def test_tiles_that_only_touch_have_a_class_for_a_pixel_on_their_seam(photo):
    """Rounding moves the centre of pixel 30 out of the first tile."""
    predictor = predictor_of(semantic_fpn, tile=31, overlap=0, scale=1.5)
    assert predictor(photo[:61, :61]).segmentation.shape == (61, 61)


def test_objects_are_in_pixels_of_the_photo_at_any_scale(photo):
    options = dict(whole=True, window=256)
    prediction = predictor_of(mask_rcnn, scale=1.5, **options)(photo)
    of_resized = predictor_of(mask_rcnn, scale=1, **options)(cv2.resize(photo, (624, 672)))
    assert len(prediction) > 5
    np.testing.assert_allclose(prediction.boxes, of_resized.boxes / 1.5, atol=1e-3)
    assert prediction.masks.shape[1:] == (448, 416)


class Discs:
    """A perfect detector of `limit` objects at most in place of neck and heads."""

    preprocess = SimpleNamespace(blank_sample=lambda: None)
    is_detector = True
    names = CLASSES
    palette = None

    def __init__(self, scene: Scene, limit: int = 100) -> None:
        self.scene = scene
        self.most_objects = limit

    def see(self, overlap: int, window: int = 512) -> SeenWhole:
        image = SeenWhole(self, ImageSource(self.scene.image), View(1.0, True, window, overlap))
        image._is_open = True

        def predict(row, column) -> Prediction:
            found = detect(self.scene.image[row.span, column.span])
            return replace(found, instances=found.instances[: self.most_objects])

        image._predict = predict
        return image


def disc(x: int, y: int, radius: int) -> np.ndarray:
    return np.array(cv2.ellipse2Poly((x, y), (radius, radius), 0, 0, 360, 5))


def assert_found_once_and_whole(scene: Scene, prediction: Prediction) -> None:
    masks = prediction.instances.mask
    assert judge(scene, masks, prediction.labels.tolist()) == NO_FAULTS


@pytest.mark.slow
def test_two_thousand_discs_are_found_by_a_detector_of_a_hundred(capsys):
    scene = Scene(2048, 2048)
    points = [(x, y) for y in range(24, 2048, 45) for x in range(24, 2048, 45)][:2000]
    assert all(scene.add(disc(*point, 15)) for point in points)
    assert_found_once_and_whole(scene, Discs(scene).see(overlap=256).result())
    assert capsys.readouterr().err == ""


# Of the size of the overlap, and in windows that see the same.
@pytest.mark.parametrize(
    ("size", "radius", "window", "overlap"),
    [(2048, 750, 512, 1536), (1000, 333, 512, 1536), (250, 83, 128, 0)],
)
def test_an_object_in_several_windows_is_found_once_and_whole(size, radius, window, overlap):
    scene = Scene(size, size)
    assert scene.add(disc(size // 2, size // 2, radius))
    assert_found_once_and_whole(scene, Discs(scene).see(overlap, window).result())


def test_a_cell_with_too_many_objects_is_named_once(capsys):
    scene = Scene(128, 256).add_random(30, 5, 9)
    assert len(Discs(scene, limit=2).see(overlap=0, window=128).result()) <= 4
    problem = "max_per_img=2 is reached in 128x256 pixels: objects may be missed"
    assert capsys.readouterr().err == f"{problem}, so set a higher one in test_cfg\n"


@pytest.mark.parametrize("recipe", [semantic_fpn, upernet, psp_net, mask_rcnn])
def test_the_heads_of_the_paper_are_local_or_exact(recipe):
    assert is_exact_whole(model_of(recipe)[0])


def fpn_whose_logits_are_resized_by_their_corners():
    """Which the head itself does not show."""
    model = build(semantic_fpn())
    model.align_corners = True
    return model


def own_head_with_pools():
    model = build(upernet())
    head = model.decode_head
    head.__class__ = type("Own", (type(head),), {})
    return model


def pools_of_cells_beyond_the_padding():
    """Images are padded to 32 pixels, and these cells have 64."""
    cfg = psp_net()
    cfg.model.neck.num_outs = 5
    cfg.model.decode_head.in_index = 4
    return build(cfg)


@pytest.mark.parametrize(
    ("part", "make"),
    [
        ("RetinaHead", lambda: build(retinanet())),  # sees more than the margin
        ("FPN", lambda: build(semantic_fpn(neck=dict(norm_cfg=dict(type="GN", num_groups=4))))),
        ("FPNHead", lambda: build(semantic_fpn(decode_head=dict(align_corners=True)))),
        ("FPNHead", fpn_whose_logits_are_resized_by_their_corners),
        ("Own", own_head_with_pools),
        ("PSPHead", pools_of_cells_beyond_the_padding),
    ],
)
def test_a_part_that_sees_the_image_is_named(part, make, capsys):
    model = make()
    check_whole(model)
    assert capsys.readouterr().err.startswith(f"{part} sees windows, not the image")
    assert not is_exact_whole(model)


def test_networks_that_see_whole_images_or_cut_them_are_refused():
    model = SimpleNamespace(
        backbone=model_of(semantic_fpn)[0].backbone, test_cfg=dict(mode="slide")
    )
    with pytest.raises(ValueError, match=r"mode='slide' .* set mode='whole'"):
        check_whole(model)
    cfg = semantic_fpn()
    cfg.test_dataloader.dataset.pipeline[1].update(scale=(128, 64), keep_ratio=False)
    with pytest.raises(ValueError, match=r"stretches images of 640 x 480 .* set keep_ratio"):
        Predictor(model_of(semantic_fpn)[0], cfg, whole=True, scale=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(whole=True, tile=128), "tile: 128 is not for whole images: leave it out"),
        (dict(tile=128, window=256), "window: 256 is for whole images"),
        (dict(whole=True, window=0), "window: 0 pixels: must be positive"),
        (dict(tile=0), "tile: 0 pixels: must be positive"),
        (dict(whole=True, scale=-1), "scale: -1: must be positive"),
        (dict(whole=True, scale=0), "scale: 0: must be positive"),
        (dict(scale=2), "scale: 2 is for large images: give tile or whole too"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        predictor_of(semantic_fpn, **options)


@pytest.fixture
def in_files(photo, monkeypatch) -> tuple[Predictor, np.ndarray]:
    """A predictor whose taps need files, and what it predicts of the photo."""
    predictor = predictor_of(semantic_fpn, whole=True, window=256)
    expected = predictor(photo).segmentation
    monkeypatch.setattr(whole_module, "MEMORY", 0)
    return predictor, expected


def test_taps_that_need_files_without_a_folder_are_in_a_temporary_one(photo, in_files, capsys):
    predictor, expected = in_files
    assert np.array_equal(predictor(photo).segmentation, expected)
    assert "GB are written to" in capsys.readouterr().err


def test_a_folder_of_taps_goes_unless_there_was_an_error(photo, in_files, tmp_path, monkeypatch):
    predictor, expected = in_files
    folder = tmp_path / "taps"
    with pytest.raises(KeyboardInterrupt), predictor.see(photo, folder=folder):
        raise KeyboardInterrupt
    assert len([*folder.glob("*/tap?")]) == 4
    (folder / "of-the-user").touch()
    with predictor.see(photo[::-1].copy(), folder=folder) as whole:
        whole.result()
    assert len([*folder.glob("*/tap?")]) == 4  # those of the first image
    monkeypatch.chdir(tmp_path)
    with predictor.see(photo, folder="taps") as whole:
        monkeypatch.chdir("/")
        labels = whole.result().segmentation
    assert [path.name for path in folder.iterdir()] == ["of-the-user"]
    assert np.array_equal(labels, expected)


def test_neighbouring_parts_have_each_object_once():
    scene = Scene(300, 600).add_random(20, 20, 60)
    image = Discs(scene).see(overlap=0, window=256)
    halves = [image.predict(slice(None), slice(start, start + 300)) for start in (0, 300)]
    assert sum(map(len, halves)) == 20


def test_a_detector_without_a_limit_divides_no_window():
    cfg = mask_rcnn()
    cfg.model.test_cfg.rcnn.max_per_img = -1
    assert Predictor(build(cfg), cfg).most_objects is None


def test_pixels_into_which_gaps_are_mixed_have_no_data():
    image = np.zeros((60, 60, 3), np.uint8)
    valid = np.ones((60, 60), bool)
    valid[:, :21] = False
    image[:, :21] = 255
    pixels, has_data = ImageSource(image, valid).resampled(90, 90).read(slice(0, 90), slice(0, 90))
    assert not pixels[has_data].any() and has_data.sum() > 80 * 55


def test_labels_are_those_of_mmseg_in_a_photo_that_is_resized(photo, monkeypatch):
    cfg = deepcopy(model_of(semantic_fpn)[1])
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [
        pipeline[0],
        dict(type="Resize", scale=(300, 300), keep_ratio=True),
        *pipeline[1:],
    ]
    predictor = Predictor(model_of(semantic_fpn)[0], cfg)
    sample = predictor.preprocess(photo)
    with torch.inference_mode():
        (expected,) = predictor.model.test_step({name: [part] for name, part in sample.items()})
    monkeypatch.setattr(labels_module, "LOGITS", 3 * photo[..., 0].size)  # of five classes
    labels = predictor(photo).segmentation
    assert np.array_equal(labels, expected.pred_sem_seg.data[0].numpy())


def test_an_image_of_a_type_that_opencv_does_not_resize_is_resampled():
    image = np.full((20, 30, 5), -70_000, np.int32)
    pixels, _ = ImageSource(image).resampled(40, 60).read(slice(0, 40), slice(0, 60))
    assert pixels.shape == (40, 60, 5) and (pixels == -70_000).all()
