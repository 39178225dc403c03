//! epoll
