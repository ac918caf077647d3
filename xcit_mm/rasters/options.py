"""Options of a command line that say how rasters are read, tiled and labelled."""

import argparse

LOADING = ("gsd", "bands", "bounds", "percentiles", "nodata")
"""Options of `Raster`."""
TILING = ("tile", "overlap")


def add_raster_options(parser: "argparse._ActionsContainer") -> None:
    """Add the options that training and prediction share. Without a value, they are None."""
    add = parser.add_argument
    column_help = "column of the labels' classes (default: class, label, name, category or type)"
    add("--class-column", metavar="NAME", help=column_help)
    add("--layer", metavar="NAME", help="layer of the labels (default: the first with polygons)")
    add("--aoi", metavar="FILE", help="only within the polygons of a vector file")
    side_help = "side of a tile (default: of the training, or of the config's images)"
    add("--tile", type=int, metavar="PIXELS", help=side_help)
    overlap_help = "minimum overlap of tiles (default: of the training, or tile / 4)"
    add("--overlap", type=int, metavar="PIXELS", help=overlap_help)
    gsd_help = "read at this size of pixels (default: of the training)"
    add("--gsd", type=float, metavar="METRES", help=gsd_help)
    bands_help = "numbers of the bands, from 1, such as those of red, green and blue"
    add("--bands", type=int, nargs="+", metavar="N", help=bands_help)
    bounds_help = "LOW HIGH that become 0 and 255 (default: of the training)"
    add("--bounds", type=float, nargs="+", metavar="X", help=bounds_help)
    scale_help = "become 0 and 255 (default: 2 98)"
    add("--percentiles", type=float, nargs=2, metavar=("LOW", "HIGH"), help=scale_help)
    nodata_help = "stored value of no data (default: the file's)"
    add("--nodata", type=float, metavar="X", help=nodata_help)
