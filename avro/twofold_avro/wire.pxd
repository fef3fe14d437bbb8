# The types of wire.py's two functions in C, for those who call them from C.
cpdef unsigned int murmur2(bytes data)
cpdef Py_ssize_t partition_of(bytes key, Py_ssize_t partitions)
