import type { Signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'
import { asked } from '#services/console/place.ts'
import { modelFor } from '#services/console/screens/playground/served.ts'
import { Code } from './code.tsx'
import { ModelChoice } from './models.tsx'
import { Options } from './options.tsx'
import { ProblemOf } from './problem.tsx'
import type { Run } from './run.ts'
import { type Field, filledIn } from './schema.ts'
import { Send } from './send.tsx'

interface CallFormProps {
  readonly run: Run
  /** The model that is called, of those that can do something; absent: the call needs none. */
  readonly model?: { readonly capability: string; readonly chosen: Signal<string> }
  /** Its options, with what was filled in. */
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  /** How many options are seen without being asked for. */
  readonly shown?: number
  /** What the button says. */
  readonly verb: string
  /** Whether what is asked is complete; a model is chosen besides. */
  readonly isReady: boolean
  readonly send: (options: Readonly<Record<string, unknown>>) => Promise<void>
  /** What is asked. */
  readonly children: ComponentChildren
  /** What stands beside the button. */
  readonly beside?: ComponentChildren
  /** What came of it. */
  readonly outcome?: ComponentChildren
  /** What stands before the options. */
  readonly hint?: ComponentChildren
  /** What came of it, where that needs the whole width. */
  readonly below?: ComponentChildren
}

/** A form for one call: what is asked, its options, what came of it, and the code of it. */
export function CallForm(props: CallFormProps) {
  const { run, model, fields, values, shown, verb, isReady, send } = props
  useEffect(() => {
    if (model) model.chosen.value = modelFor(model.capability, asked('model') || model.chosen.value)
  }, [])
  return (
    <>
      <div class="columns">
        <form
          class="card form"
          onSubmit={(event) => {
            event.preventDefault()
            void send(filledIn(fields, values.value))
          }}
        >
          {props.children}
          <div class="actions">
            <Send run={run} label={verb} isReady={isReady && model?.chosen.value !== ''} />
            {props.beside}
          </div>
          <ProblemOf run={run} />
          {props.outcome}
        </form>
        <Options fields={fields} values={values} {...(shown !== undefined && { shown })}>
          {model && <ModelChoice capability={model.capability} model={model.chosen} />}
          {props.hint}
        </Options>
      </div>
      {props.below}
      <Code calls={run.calls.value} />
    </>
  )
}

interface WordsProps {
  readonly label: string
  readonly of: Signal<string>
  /** Lines that are seen; absent: it has one. */
  readonly rows?: number
  /** They are code. */
  readonly isSource?: boolean
}

/** Words that are asked about. */
export function Words({ label, of, rows, isSource = false }: WordsProps) {
  const onInput = ({ currentTarget }: { readonly currentTarget: { readonly value: string } }) => {
    of.value = currentTarget.value
  }
  const source = isSource && ({ class: 'source', spellcheck: false, autocapitalize: 'off' } as const)
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is within, one of two.
    <label>
      <span>{label}</span>
      {rows === undefined ? (
        <input value={of.value} onInput={onInput} />
      ) : (
        <textarea {...{ rows, ...source }} value={of.value} onInput={onInput} />
      )}
    </label>
  )
}

/** The lines of a text that say something. */
export function linesOf(text: string): readonly string[] {
  return text.split('\n').flatMap((line) => line.trim() || [])
}
