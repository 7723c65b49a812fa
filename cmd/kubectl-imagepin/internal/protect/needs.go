package protect

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// Key identifies an image in a registry.
type Key struct {
	// Repository is normalized, for example docker.io/library/nginx.
	Repository string
	Digest     digest.Digest
}

// User is an object that needs a digest.
type User struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Need is a digest that a cluster needs.
type Need struct {
	Key
	// Users are sorted, each once.
	Users []User
	// Tags are tags of the repository with which pods and ImagePins name the image. They can mean another digest now.
	Tags []string
}

// Needs are the digests that a cluster needs. The zero value has none.
type Needs struct {
	all map[Key]*need
	// unknown is the number of running containers of each repository whose imageID is no digest in a repository.
	unknown map[string]int
	// Invalid are references that cannot be parsed, with the objects that have them.
	Invalid []error
}

type need struct {
	users map[User]bool
	tags  map[string]bool
}

// Has reports whether the cluster needs a digest.
func (n *Needs) Has(key Key) bool { return n.all[key] != nil }

// List returns the digests, sorted by repository and digest.
func (n *Needs) List() []Need {
	var list []Need
	for key, of := range n.all {
		users := slices.SortedFunc(maps.Keys(of.users), func(x, y User) int {
			return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name))
		})
		list = append(list, Need{Key: key, Users: users, Tags: slices.Sorted(maps.Keys(of.tags))})
	}
	slices.SortFunc(list, func(x, y Need) int {
		return cmp.Or(cmp.Compare(x.Repository, y.Repository), cmp.Compare(x.Digest, y.Digest))
	})
	return list
}

// AddPod adds what a pod runs: the imageIDs that kubelet reports, in the repositories that they name, and digests that the pod
// names itself. It ignores a pod that has finished.
func (n *Needs) AddPod(pod *corev1.Pod) {
	user := User{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	if owner, ok := workload.OwnerOf(pod); ok {
		user.Kind, user.Name = owner.Kind, owner.Name
	}
	for _, c := range workload.RunningIn(pod) {
		named, err := workload.ParseImage(c.Image)
		if err != nil {
			n.invalid(user, err)
			continue
		}
		n.addNamed(user, named)
		if c.ImageID.Of != workload.OfManifest {
			if named.Digest == "" {
				n.addUnknown(named.Repository)
			}
			continue
		}
		run, err := workload.ParseImage(c.Repository)
		if err != nil {
			n.invalid(user, err)
			continue
		}
		n.add(Key{run.Repository, c.ImageID.Digest}, user, tagIn(named, run.Repository))
	}
}

// AddTemplate adds the digests that a pod template names. With a tag, only an ImagePin knows the digest.
func (n *Needs) AddTemplate(user User, spec *corev1.PodSpec) {
	for _, c := range workload.Containers(spec) {
		named, err := workload.ParseImage(c.Image)
		if err != nil {
			n.invalid(user, err)
			continue
		}
		n.addNamed(user, named)
	}
}

// AddPin adds the digest of an ImagePin.
func (n *Needs) AddPin(pin *v1alpha1.ImagePin) {
	user := User{Kind: "ImagePin", Namespace: pin.Namespace, Name: pin.Name}
	image, err := workload.ParseImage(pin.Spec.Image)
	if err != nil {
		n.invalid(user, err)
		return
	}
	d, err := digest.Parse(pin.Spec.Digest)
	if err != nil {
		n.invalid(user, err)
		return
	}
	n.add(Key{image.Repository, d}, user, tagIn(image, image.Repository))
}

func (n *Needs) addUnknown(repository string) {
	if n.unknown == nil {
		n.unknown = make(map[string]int)
	}
	n.unknown[repository]++
}

// Unknown returns the number of running containers of selected repositories whose imageID is no digest in a repository, such as that
// of an imported image.
func (n *Needs) Unknown(selected func(repository string) bool) int {
	count := 0
	for repository, containers := range n.unknown {
		if selected(repository) {
			count += containers
		}
	}
	return count
}

func (n *Needs) addNamed(user User, image workload.Image) {
	if image.Digest != "" {
		n.add(Key{image.Repository, image.Digest}, user, tagIn(image, image.Repository))
	}
}

func (n *Needs) add(key Key, user User, tag string) {
	if n.all == nil {
		n.all = make(map[Key]*need)
	}
	of := n.all[key]
	if of == nil {
		of = &need{users: make(map[User]bool), tags: make(map[string]bool)}
		n.all[key] = of
	}
	of.users[user] = true
	if tag != "" {
		of.tags[tag] = true
	}
}

func (n *Needs) invalid(user User, err error) {
	n.Invalid = append(n.Invalid, &invalidError{user, err})
}

// invalidError is a reference that cannot be parsed.
type invalidError struct {
	user User
	err  error
}

func (e *invalidError) Error() string {
	return strings.ToLower(e.user.Kind) + "/" + e.user.Name + " in namespace " + e.user.Namespace + ": " + e.err.Error()
}

func (e *invalidError) Unwrap() error { return e.err }

// tagIn returns the tag of an image if it is of a repository.
func tagIn(image workload.Image, repository string) string {
	tag, _ := strings.CutPrefix(strings.TrimPrefix(image.Tagged, repository), ":")
	if image.Repository != repository {
		return ""
	}
	return tag
}
