hyscale_op(gate SOURCES gate.cpp gate.cu)
