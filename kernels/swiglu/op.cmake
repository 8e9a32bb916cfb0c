hyscale_op(swiglu SOURCES swiglu.cpp swiglu.cu)
