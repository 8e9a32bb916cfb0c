hyscale_op(gated_residual SOURCES gated_residual.cpp)
