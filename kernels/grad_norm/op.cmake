hyscale_op(grad_norm SOURCES grad_norm.cpp grad_norm.cu)
