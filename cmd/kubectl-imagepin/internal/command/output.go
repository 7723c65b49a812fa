package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// outputVersion is the API version of what commands print with -o json that is not an object of the API server.
const outputVersion = "output.imagepin.io/v1alpha1"

// output are the flags of a command that prints a table or text, unless there is an output format.
type output struct {
	format    string
	noHeaders bool
	flags     *genericclioptions.PrintFlags
	own       []string // formats beside those of flags
}

// newOutput adds the flags to a command. own are the formats that the command prints itself.
func newOutput(cmd *cobra.Command, flags *genericclioptions.PrintFlags, own ...string) *output {
	o := &output{flags: flags, own: own}
	flags.OutputFormat = nil
	flags.AddFlags(cmd)
	flags.OutputFormat = &o.format
	flags.OutputFlagSpecified = func() bool { return cmd.Flag("output").Changed }
	formats := append(slices.Clone(own), flags.AllowedFormats()...)
	cmd.Flags().StringVarP(&o.format, "output", "o", "", fmt.Sprintf("Output format. One of: (%s).", strings.Join(formats, ", ")))
	return o
}

// dataFlags are the flags of a command that prints data which is not an object of the API server.
func dataFlags() *genericclioptions.PrintFlags {
	f := genericclioptions.NewPrintFlags("")
	f.NamePrintFlags = nil
	return f
}

func (o *output) addNoHeaders(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "When using the default or wide output format, don't print headers.")
}

// isOwn reports whether the command prints the format itself.
func (o *output) isOwn() bool {
	template := o.flags.TemplatePrinterFlags.TemplateArgument
	return o.format == "" && (template == nil || *template == "") || slices.Contains(o.own, o.format)
}

func (o *output) wide() bool { return o.format == "wide" }

// check returns an error for an unknown format.
func (o *output) check() error {
	if o.isOwn() {
		return nil
	}
	_, err := o.flags.ToPrinter()
	if wrong, ok := err.(genericclioptions.NoCompatiblePrinterError); ok {
		wrong.AllowedFormats = append(wrong.AllowedFormats, o.own...)
		return wrong
	}
	return err
}

// print prints an object in the format of the flags.
func (o *output) print(w io.Writer, obj runtime.Object) error {
	p, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	return p.PrintObj(obj, w)
}

// printData prints data that has a TypeMeta.
func (o *output) printData(w io.Writer, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil {
		return err
	}
	return o.print(w, u)
}

// table is a table as kubectl prints it.
type table struct {
	columns    []string
	rows       [][]any
	namespaces bool
}

// newTable returns a table whose first column has namespaces, if it is to have them.
func newTable(namespaces bool, columns ...string) *table {
	if namespaces {
		columns = slices.Insert(columns, 0, "Namespace")
	}
	return &table{columns: columns, namespaces: namespaces}
}

func (t *table) add(namespace string, cells ...any) {
	if t.namespaces {
		cells = slices.Insert(cells, 0, any(namespace))
	}
	t.rows = append(t.rows, cells)
}

func (t *table) print(w io.Writer, o *output) error {
	var m metav1.Table
	for _, c := range t.columns {
		m.ColumnDefinitions = append(m.ColumnDefinitions, metav1.TableColumnDefinition{Name: c, Type: "string"})
	}
	for _, r := range t.rows {
		for i, c := range r {
			if c == "" {
				r[i] = "<none>"
			}
		}
		m.Rows = append(m.Rows, metav1.TableRow{Cells: r})
	}
	tw := printers.GetNewTabWriter(w)
	if err := printers.NewTablePrinter(printers.PrintOptions{NoHeaders: o.noHeaders, Wide: true}).PrintObj(&m, tw); err != nil {
		return err
	}
	return tw.Flush()
}

// short returns the first digits of a digest.
func short(d string) string {
	const digits = 12
	if encoded := digest.Digest(d); encoded.Validate() == nil {
		return encoded.Encoded()[:digits]
	}
	return d
}

// ownerName returns how commands name an owner, for example ReplicaSet/web-7d4b9c.
func ownerName(o v1alpha1.Owner) string { return o.Kind + "/" + o.Name }

// typed returns an ImagePin with its API version and kind, which clients remove.
func typed(pin *v1alpha1.ImagePin) *v1alpha1.ImagePin {
	pin = pin.DeepCopy()
	pin.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ImagePin"))
	return pin
}

// count returns a number and a noun, for example "1 pod" and "2 pods".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
