hyscale_op(elementwise SOURCES elementwise.cpp elementwise.cu)
