"""What every floor uses: arguments checked, pytrees, tracing, printing, warnings."""
