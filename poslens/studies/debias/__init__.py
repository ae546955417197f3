"""The study `debias`: debiasing by training and by attention calibration."""
