package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const (
	startNamespace = "starts"
	// startNode is the node with ImagePins.
	startNode = "start"
	hashLabel = "pod-template-hash"
)

// startCase is a state in which a pod starts.
type startCase struct {
	name   string
	budget time.Duration // the additional time that ImagePins may take
	// same means that all pods have one revision, of which a pod has run on the node.
	same bool
	// pinned means that the ImagePin was created before, by another node.
	pinned bool
}

var startCases = []startCase{
	{name: "another pod of a revision", same: true, budget: 3 * time.Millisecond},
	{name: "first pod on the node, known ImagePin", pinned: true, budget: 3 * time.Millisecond},
	{name: "first pod of a revision, new ImagePin", budget: 10 * time.Millisecond},
}

// starts are the starts of a case: without ImagePins, and with them. Starts with the same index follow each other.
type starts struct {
	startCase
	without, with []start
}

// start is how long the calls for a pod took.
type start struct {
	image time.Duration // those for the image, and CreateContainer
	whole time.Duration // all, from RunPodSandbox to the response of StartContainer
}

// starter starts pods on two nodes: one that pins for itself, and one that uses ImagePins.
type starter struct {
	kube          *server
	reg           *registry.Registry
	without, with *node.Node
	image, digest string
	pods          int // that were created
}

// podStarts measures all cases, in turns.
func (b *bench) podStarts(ctx context.Context, kube *server) (_ []*starts, err error) {
	b.say("starting %d pods on two nodes in each of %d cases", b.starts, len(startCases))
	s, err := newStarter(ctx, kube)
	defer func() { err = errors.Join(err, s.close()) }()
	if err != nil {
		return nil, err
	}
	var all []*starts
	for _, c := range startCases {
		all = append(all, &starts{startCase: c})
	}
	// The first round is not measured: the first pod of a node pulls the images, and the first claim opens a connection.
	for round := range b.starts + 1 {
		for _, c := range all {
			nodes := []*node.Node{s.without, s.with}
			if round%2 == 1 {
				nodes[0], nodes[1] = nodes[1], nodes[0]
			}
			for _, n := range nodes {
				took, err := s.start(ctx, n, c.startCase)
				if err != nil {
					return nil, fmt.Errorf("%s, with ImagePins %t: %w", c.name, n == s.with, err)
				}
				switch {
				case round == 0:
				case n == s.with:
					c.with = append(c.with, took)
				default:
					c.without = append(c.without, took)
				}
			}
		}
	}
	return all, nil
}

// newStarter starts the nodes. It returns a starter to close also if it fails.
func newStarter(ctx context.Context, kube *server) (s *starter, err error) {
	s = &starter{kube: kube}
	if s.reg, err = registry.New(); err != nil {
		return s, err
	}
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return s, err
	}
	if _, err := s.reg.Push("pause:3.10", pause); err != nil {
		return s, err
	}
	app, err := images.AppIndex(ctx, images.Options{}, images.HostPlatform())
	if err != nil {
		return s, err
	}
	digest, err := s.reg.Push("shop/web:v7", app)
	if err != nil {
		return s, err
	}
	s.image, s.digest = s.reg.Ref("shop/web:v7"), digest.String()
	if err := kube.createNamespace(ctx, startNamespace); err != nil {
		return s, err
	}
	if err := kube.Do(ctx, "POST", "/api/v1/nodes", &core.Node{ObjectMeta: meta.ObjectMeta{Name: startNode}}, nil); err != nil {
		return s, err
	}
	opts := node.Options{Binary: node.Ours, SandboxImage: s.reg.Ref("pause:3.10"), LogLevel: "info"}
	opts.Extra = "[plugins.\"io.containerd.imagepin.v1.images\"]\nversion_consistency = \"workload\"\n"
	if s.without, err = node.Start(ctx, opts); err != nil {
		return s, err
	}
	// A claim that fails must not be measured as a provisional pin.
	opts.Extra = pool.Claims("30s", "unavailable = \"fail\"\n")
	if s.with, err = node.New(opts); err != nil {
		return s, err
	}
	if _, err := kube.WriteNodeKubeconfig(s.with.Path("imagepin-api", "kubeconfig"), startNode, ""); err != nil {
		return s, err
	}
	return s, s.with.Start(ctx)
}

func (s *starter) close() error {
	var errs []error
	for _, n := range []*node.Node{s.without, s.with} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	if s.reg != nil {
		s.reg.Close()
	}
	return errors.Join(errs...)
}

// start starts a pod as kubelet does with imagePullPolicy Always, and removes it. The image is on the node, except in the
// first round.
func (s *starter) start(ctx context.Context, n *node.Node, c startCase) (took start, err error) {
	revision := "same"
	if !c.same {
		revision = fmt.Sprintf("r%d", s.pods)
	}
	pod, err := s.create(ctx, n, c, revision)
	if err != nil {
		return start{}, err
	}
	k := node.KubeletPod{
		PodOptions: node.PodOptions{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, Labels: map[string]string{hashLabel: revision}},
		Image:      s.image, Always: true,
	}
	res := &node.KubeletResult{}
	began := time.Now()
	if res.Pod, err = n.RunPod(ctx, k.PodOptions); err != nil {
		return start{}, err
	}
	defer func() { err = errors.Join(err, n.RemovePod(ctx, res.Pod)) }()
	sandboxed := time.Now()
	opts, err := n.ImageAsKubelet(ctx, k, res)
	if err != nil {
		return start{}, err
	}
	container, err := n.CreateContainer(ctx, res.Pod, opts)
	if err != nil {
		return start{}, err
	}
	took.image = time.Since(sandboxed)
	if _, err := n.Runtime().StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container.ID}); err != nil {
		return start{}, err
	}
	took.whole = time.Since(began)
	if n == s.with {
		err = s.check(ctx, ownerOf(revision), c)
	}
	return took, err
}

func ownerOf(revision string) string { return "web-" + revision }

// create creates the pod in the API, as far as the node needs it.
func (s *starter) create(ctx context.Context, n *node.Node, c startCase, revision string) (policy.Pod, error) {
	s.pods++
	name := fmt.Sprintf("%s-%05d", ownerOf(revision), s.pods)
	if n != s.with {
		return policy.Pod{Namespace: startNamespace, Name: name, UID: name}, nil
	}
	owner := replicaSet(startNamespace, ownerOf(revision))
	if c.pinned {
		if err := s.pin(ctx, owner); err != nil {
			return policy.Pod{}, err
		}
	}
	p := newPod(name, startNode, owner)
	p.Labels = map[string]string{hashLabel: revision}
	if err := s.kube.Do(ctx, "POST", podsPath(startNamespace), p, p); err != nil {
		return policy.Pod{}, err
	}
	pod := policy.Pod{Namespace: startNamespace, Name: name, UID: string(p.UID)}
	return pod, awaitReadable(ctx, s.kube, pod, startNode)
}

// pin creates an ImagePin as another node would, and waits until the cache of the API server has it.
func (s *starter) pin(ctx context.Context, ref meta.OwnerReference) error {
	owner := v1alpha1.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID}
	ref.Controller = nil
	p := &v1alpha1.ImagePin{
		TypeMeta:   meta.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePin"},
		ObjectMeta: meta.ObjectMeta{Name: v1alpha1.Name(owner, s.image), OwnerReferences: []meta.OwnerReference{ref}},
		Spec: v1alpha1.ImagePinSpec{
			Image: s.image, Digest: s.digest, Owner: owner, By: &v1alpha1.Claimer{Node: "other", Pod: ref.Name + "-other", PodUID: "other"},
		},
	}
	if err := s.kube.Do(ctx, "POST", pinsPath(startNamespace), p, nil); err != nil {
		return err
	}
	return awaitCached(ctx, s.kube.Client, pinsPath(startNamespace)+"/"+p.Name)
}

// check returns an error if the owner of a pod does not have the ImagePin of its case.
func (s *starter) check(ctx context.Context, owner string, c startCase) error {
	var list v1alpha1.ImagePinList
	if err := s.kube.Do(ctx, "GET", pinsPath(startNamespace), nil, &list); err != nil {
		return err
	}
	by := startNode
	if c.pinned {
		by = "other"
	}
	for _, p := range list.Items {
		if p.Spec.Owner.Name != owner {
			continue
		}
		if p.Spec.Digest != s.digest || p.Spec.By.Node != by {
			return fmt.Errorf("the ImagePin of %s has the digest %s, by %s; want %s, by %s", owner, p.Spec.Digest, p.Spec.By.Node, s.digest, by)
		}
		return nil
	}
	return fmt.Errorf("%s has no ImagePin", owner)
}
