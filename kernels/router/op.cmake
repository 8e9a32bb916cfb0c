hyscale_op(router SOURCES router.cpp router.cu)
