hyscale_op(hyper_connection SOURCES hyper_connection.cpp hyper_connection.cu)
