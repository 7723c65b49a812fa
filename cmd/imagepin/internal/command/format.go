package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// Values of --output.
const (
	outputTable    = "table"
	outputWide     = "wide"
	outputJSON     = "json"
	outputYAML     = "yaml"
	outputTemplate = "go-template="
)

// outputs are all values of --output, for completion.
var outputs = []string{outputTable, outputWide, outputJSON, outputYAML, outputTemplate}

func outputFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: outputTable,
		Usage:     "output `FORMAT`: table, wide, json, yaml, or go-template=TEMPLATE over the JSON object",
		Validator: checkOutput,
	}
}

func checkOutput(format string) error {
	switch format {
	case outputTable, outputWide, outputJSON, outputYAML:
		return nil
	}
	if !strings.HasPrefix(format, outputTemplate) {
		return errors.New("must be table, wide, json, yaml or go-template=TEMPLATE")
	}
	_, err := parseTemplate(format)
	return err
}

func parseTemplate(format string) (*template.Template, error) {
	return template.New("output").Parse(strings.TrimPrefix(format, outputTemplate))
}

// printsText reports whether the output is text for people, and not a format for programs.
func printsText(cmd *cli.Command) bool {
	format := cmd.String("output")
	return format == outputTable || format == outputWide
}

// print prints a response in the format that --output selects: it calls text for a table.
func (a *app) print(cmd *cli.Command, response any, text func() error) error {
	if printsText(cmd) {
		return text()
	}
	object, err := marshal(response)
	if err != nil {
		return err
	}
	return printObject(a.Out, cmd.String("output"), object)
}

// marshal returns a response as JSON: a message in protobuf's JSON format, including empty fields.
func marshal(response any) ([]byte, error) {
	if m, ok := response.(proto.Message); ok {
		return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	}
	return json.Marshal(response)
}

// printObject prints a JSON object in a format for programs.
func printObject(w io.Writer, format string, object []byte) error {
	switch format {
	case outputJSON:
		return printJSON(w, object)
	case outputYAML:
		b, err := yaml.JSONToYAML(object)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	return printTemplate(w, format, object)
}

// printJSON indents object. protojson intentionally varies its white space between builds; this output is stable.
func printJSON(w io.Writer, object []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, object, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := out.WriteTo(w)
	return err
}

// printTemplate prints nothing if the template fails.
func printTemplate(w io.Writer, format string, object []byte) error {
	t, err := parseTemplate(format)
	if err != nil {
		return err
	}
	var data any
	if err := json.Unmarshal(object, &data); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return fmt.Errorf("-o go-template: %w", err)
	}
	_, err = out.WriteTo(w)
	return err
}
