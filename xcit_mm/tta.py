"""Nothing: `xcit_mm` alone registers `MaskTTAModel`. Configs written for version 0.1.0 import this module too."""
