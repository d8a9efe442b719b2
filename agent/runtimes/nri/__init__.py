"""The agent as a plugin of a container runtime: NRI, as containerd and CRI-O speak it.

A runtime reports the pods and containers that it makes, and applies what a plugin adjusts. This
folder is the transport and the messages; what is adjusted is decided by its handler. protobuf is
part of the extra `grpc`, gRPC itself is not used; nothing imports this folder unless the
configuration asks for the pods of a kubelet.
"""
