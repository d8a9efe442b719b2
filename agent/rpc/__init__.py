"""gRPC over Unix sockets: messages, clients, servers, and two APIs of the kubelet."""

# First of all: where the extra is missing, the error names the package that users know.
import grpc  # noqa: F401
