"""Export: from a trained folder to a small ONNX model, and back. Needs the `train` extra."""
