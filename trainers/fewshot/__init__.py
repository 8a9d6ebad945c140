"""CoOp's training: a context learnt from a few labelled images per class."""
