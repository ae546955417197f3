"""Published benchmarks of position bias: the commands `benchmark squad-posq` and
`fineweb-posq`."""
