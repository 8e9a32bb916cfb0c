hyscale_op(rms_norm SOURCES rms_norm.cpp rms_norm.cu)
