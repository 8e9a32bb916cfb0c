hyscale_op(l2_norm SOURCES l2_norm.cpp l2_norm.cu)
