"""The Debias page: self-distillation and attention calibration."""
