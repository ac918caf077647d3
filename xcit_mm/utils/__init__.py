"""What every layer needs: whole files, errors in one line, configs."""
