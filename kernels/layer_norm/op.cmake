hyscale_op(layer_norm SOURCES layer_norm.cpp layer_norm.cu)
