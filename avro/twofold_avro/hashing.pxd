# The hash as C, for the transcoder.
cdef class KeyedHash:
    cdef object inner
    cdef object outer
    cdef bytearray store
    cdef unsigned char* places
    cdef bytes made
    cdef Py_ssize_t turn
    cdef unsigned char* find(self, unsigned char* src, Py_ssize_t at, Py_ssize_t size) except NULL
    cpdef bytes encode(self, bytes value)
