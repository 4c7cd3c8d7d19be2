"""The messages of the kubelet's device plugin API (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1), as far as we use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"
PACKAGE = "v1beta1"
REGISTER_METHOD = f"/{PACKAGE}.Registration/Register"
SERVICE = f"{PACKAGE}.DevicePlugin"

_STRING_MAP = "map<string, string>"
# message -> (field, number, kind, repeated); a kind is string, bool, a map, or another message
_MESSAGES: Mapping[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Empty": (),
    "DevicePluginOptions": (("pre_start_required", 1, "bool", False),),
    "RegisterRequest": (
        ("version", 1, "string", False),
        ("endpoint", 2, "string", False),
        ("resource_name", 3, "string", False),
        ("options", 4, "DevicePluginOptions", False),
    ),
    "Device": (("ID", 1, "string", False), ("health", 2, "string", False)),
    "ListAndWatchResponse": (("devices", 1, "Device", True),),
    "ContainerAllocateRequest": (("devices_ids", 1, "string", True),),
    "AllocateRequest": (("container_requests", 1, "ContainerAllocateRequest", True),),
    "Mount": (
        ("container_path", 1, "string", False),
        ("host_path", 2, "string", False),
        ("read_only", 3, "bool", False),
    ),
    "ContainerAllocateResponse": (("envs", 1, _STRING_MAP, True), ("mounts", 2, "Mount", True)),
    "AllocateResponse": (("container_responses", 1, "ContainerAllocateResponse", True),),
}


def _message_classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="flyball/deviceplugin.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    plain = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL}
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            if kind == _STRING_MAP:  # on the wire: repeated entries of a nested message
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                for part, part_number in (("key", 1), ("value", 2)):
                    entry.field.add(name=part, number=part_number, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
                kind = f"{name}.{entry.name}"
            message.field.add(
                name=field,
                number=number,
                type=plain.get(kind, kinds.TYPE_MESSAGE),
                type_name=None if kind in plain else f".{PACKAGE}.{kind}",
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()  # not the default one: others may have registered v1beta1 there
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES = _message_classes()


def device_plugin_handlers(plugin: Any) -> Any:
    """gRPC's handlers of a device plugin, by its methods `options`, `allocate` and `list_and_watch`."""

    def unary(call: Any, request: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            call, MESSAGES[request].FromString, lambda answer: answer.SerializeToString()
        )

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "GetDevicePluginOptions": unary(plugin.options, "Empty"),
            "Allocate": unary(plugin.allocate, "AllocateRequest"),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                plugin.list_and_watch, MESSAGES["Empty"].FromString, lambda answer: answer.SerializeToString()
            ),
        },
    )
