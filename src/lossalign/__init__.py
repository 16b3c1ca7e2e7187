"""lossalign: train with a loss that learns, while the model trains, to serve the metric you are judged by."""
