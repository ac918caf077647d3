"""What every layer needs: atomic files, errors in one line, configs, private names of other
libraries.
"""
