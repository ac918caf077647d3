"""The commands of `xcit-mm`: arguments in, a call of the package, an exit code."""
