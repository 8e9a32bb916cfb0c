hyscale_op(silu SOURCES silu.cpp silu.cu)
