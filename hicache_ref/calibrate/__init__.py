"""This machine, measured: a calibration file that the simulator takes as a machine."""
