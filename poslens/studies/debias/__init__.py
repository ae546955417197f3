"""Debiasing by training and by attention calibration: the study `debias`, the command `calibrate`
and their results."""
