"""gRPC as the kubelet and its plugins speak it: messages, calls and servers on Unix sockets.

grpcio and protobuf are the extra `grpc`; nothing imports this folder unless the configuration asks
for device plugins or podresources.
"""
