hyscale_op(gated_residual SOURCES gated_residual.cpp gated_residual.cu)
