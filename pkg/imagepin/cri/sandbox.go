package cri

import (
	"context"

	"github.com/containerd/log"
	"github.com/distribution/reference"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// runPodSandbox makes the sandbox image ready in the handler's snapshotter before upstream creates the sandbox.
// Upstream only checks that the image exists, and fails to start the sandbox if its layers are missing.
func (s *containers) runPodSandbox(ctx context.Context, r *runtime.RunPodSandboxRequest, next func(context.Context, *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error)) (*runtime.RunPodSandboxResponse, error) {
	handler := sandboxHandler(r)
	rt, err := s.lookup(handler)
	if err != nil {
		return nil, err
	}
	made := s.newSandbox(ctx, handler, r.GetConfig())
	resp, err := func() (*runtime.RunPodSandboxResponse, error) {
		if !s.needsSandboxImage(rt) {
			return next(ctx, r)
		}
		release, err := s.readySandboxImage(ctx, handler)
		if err != nil {
			return nil, err
		}
		defer release()
		return next(ctx, r)
	}()
	s.finishSandbox(made, resp.GetPodSandboxId(), err)
	return resp, err
}

// newSandbox notes a sandbox that is about to be created.
func (s *containers) newSandbox(ctx context.Context, handler string, config *runtime.PodSandboxConfig) *sandbox {
	made := &sandbox{
		handler: handler,
		pod:     podOf(config),
		marks:   podMarks(config.GetMetadata().GetUid(), config.GetAnnotations()),
	}
	s.sandboxes.add("", made)
	go s.Decider.LearnOwner(ctx, made.pod) // meanwhile: the calls for the pod's images need it
	return made
}

// finishSandbox notes that a sandbox has an ID, or could not be created.
func (s *containers) finishSandbox(made *sandbox, id string, err error) {
	if err != nil {
		s.sandboxes.remove("", made)
		return
	}
	s.sandboxes.add(id, made)
}

// needsSandboxImage reports whether the node makes the sandbox image of a handler ready.
func (s *containers) needsSandboxImage(rt runtimeplatform.Runtime) bool {
	return s.Settings().SandboxImage != "" && !s.Settings().WithoutSandboxImage[rt.Handler]
}

// readySandboxImage makes the sandbox image ready for the pods of a handler, and locks and leases it until release is
// called. An image on the node is sufficient, unless the node's lock names another digest: the registry resolves the reference
// only if the node never had it. A sandbox image that the lock does not name is allowed, because it is not an image of a pod.
func (s *containers) readySandboxImage(ctx context.Context, handler string) (release func(), _ error) {
	rt, err := s.Runtimes().Sandbox(handler)
	if err != nil {
		return nil, imagepin.UnknownHandler(err)
	}
	ref, err := imagepin.ParseReference(s.Settings().SandboxImage)
	if err != nil {
		return nil, err
	}
	if err := s.waitCompared(ctx, ref.String()); err != nil {
		return nil, err
	}
	ready := func() (imagepin.Entry, error) {
		nctx := bandwidth.ForPod(s.namespaced(ctx))
		held, locked := s.Decider.Locked(ref.String())
		e, ok := s.Store.Get(imagepin.Key{Ref: ref.String(), Target: rt.Target})
		if ok && (!locked || e.Root.Digest == held.Root.Digest) {
			return e, nil
		}
		if locked {
			return s.Puller.MakeReady(nctx, pull.Need{Ref: ref, Root: held.Root, Runtime: rt, Pin: &held})
		}
		for _, e := range s.Store.ByRef(ref.String()) {
			if o, ok := s.Runtimes().ForTarget(e.Target); ok && o.Native || e.Target.Platform == rt.Target.Platform {
				return s.Puller.MakeReady(nctx, pull.Need{Ref: ref, Root: e.Root, Runtime: rt})
			}
		}
		pulled, err := s.Puller.PullDetached(nctx, pull.Request{Ref: ref.String(), Runtime: rt, OutsideLock: true})
		return pulled.Entry, err
	}
	return s.useImages(ctx, []reference.Named{ref}, func() ([]imagepin.Entry, error) {
		e, err := ready()
		d, _ := s.Store.GetDamaged(imagepin.Key{Ref: ref.String(), Target: rt.Target})
		return []imagepin.Entry{e}, s.notReadyError(err, ref.String(), rt.Target, d.Reason)
	})
}

// removePodSandbox removes the sandbox from the cache, and notes the end of the use of its containers' images. It resolves a short ID first, which is impossible once the
// sandbox is gone.
func (s *containers) removePodSandbox(ctx context.Context, r *runtime.RemovePodSandboxRequest, next func(context.Context, *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error)) (*runtime.RemovePodSandboxResponse, error) {
	id, err := s.sandboxes.fullID(ctx, r.GetPodSandboxId())
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", r.GetPodSandboxId()).Warn("cannot resolve the ID of a sandbox, it stays cached after its removal")
	}
	if id != "" {
		s.noteEndOfUse(ctx, &runtime.ContainerFilter{PodSandboxId: id})
	}
	resp, err := next(ctx, r)
	if err == nil {
		s.sandboxes.remove(id, nil)
	}
	return resp, err
}
