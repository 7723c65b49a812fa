package cri

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// restoreMethod is known to cri-api since 0.37, which containerd 2.3 does not compile with. So its messages are read by field.
const restoreMethod = "RestorePod"

// restorePod makes the sandbox image and the images of all containers ready before upstream restores a pod from a checkpoint, as
// RunPodSandbox and CreateContainer do. The pins of the pod decide the digests.
func (s *containers) restorePod(ctx context.Context, req proto.Message, next forward) (proto.Message, error) {
	r := req.ProtoReflect()
	handler := fieldOf(r, "runtime_handler").String()
	rt, err := s.lookup(handler)
	if err != nil {
		return nil, err
	}
	made := s.newSandbox(ctx, handler, fieldOf(r, "config").Message().Interface().(*runtime.PodSandboxConfig))
	id := ""
	resp, err := func() (proto.Message, error) {
		if s.needsSandboxImage(rt) {
			release, err := s.readySandboxImage(ctx, handler)
			if err != nil {
				return nil, err
			}
			release() // not held below: images are locked in one step, so that two calls do not wait for each other
		}
		configs, release, err := s.readyImages(ctx, restoredConfigs(r), made.pod, rt)
		if err != nil {
			return nil, err
		}
		defer release()
		resp, err := next(ctx, withConfigs(req, configs))
		if err == nil {
			id = fieldOf(resp.ProtoReflect(), "pod_sandbox_id").String()
		}
		return resp, err
	}()
	s.finishSandbox(made, id, err)
	return resp, err
}

const restoredField = "container_configs"

func fieldOf(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(name))
}

// restoredConfigs returns the containers of a request to restore a pod.
func restoredConfigs(r protoreflect.Message) []*runtime.ContainerConfig {
	list := fieldOf(r, restoredField).List()
	configs := make([]*runtime.ContainerConfig, list.Len())
	for i := range configs {
		configs[i] = list.Get(i).Message().Interface().(*runtime.ContainerConfig)
	}
	return configs
}

// withConfigs returns a copy of a request to restore a pod, with other containers.
func withConfigs(req proto.Message, configs []*runtime.ContainerConfig) proto.Message {
	copied := proto.Clone(req)
	r := copied.ProtoReflect()
	list := r.Mutable(r.Descriptor().Fields().ByName(restoredField)).List()
	for i, c := range configs {
		list.Set(i, protoreflect.ValueOfMessage(c.ProtoReflect()))
	}
	return copied
}
