"""Device plugins (device plugin API v1beta1): devices of other programs, over gRPC.

Imported only where the configuration asks for device plugins (`agent.devicePlugins.enabled`), since
grpcio and protobuf are the extra `grpc`.
"""
