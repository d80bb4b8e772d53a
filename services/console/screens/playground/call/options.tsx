import type { Signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { Field } from './schema.ts'

interface OptionsProps {
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  /** How many are seen without being asked for. */
  readonly shown?: number
  /** What stands before them, such as the model. */
  readonly children?: ComponentChildren
}

/** What a call asks for beside its words: fields made from its schema. An empty one is left to the service. */
export function Options({ fields, values, shown = 4, children }: OptionsProps) {
  const more = fields.slice(shown)
  return (
    <aside class="card options" aria-label="Options">
      {children}
      {fields.slice(0, shown).map((field) => (
        <Option key={field.name} field={field} values={values} />
      ))}
      {more.length > 0 && (
        <details>
          <summary>More options</summary>
          <div class="options">
            {more.map((field) => (
              <Option key={field.name} field={field} values={values} />
            ))}
          </div>
        </details>
      )}
    </aside>
  )
}

function Option({ field, values }: { readonly field: Field; readonly values: OptionsProps['values'] }) {
  const { name, label, kind, min, max, step, choices, hint } = field
  const value = values.value[name] ?? ''
  const change = ({ currentTarget }: { currentTarget: { value: string } }) => {
    values.value = { ...values.value, [name]: currentTarget.value }
  }
  if (kind === 'number') {
    const range = min !== undefined && max !== undefined ? `${min} to ${max}` : 'default'
    return (
      <label>
        <span>{label}</span>
        <input type="number" {...{ min, max, step, value }} placeholder={range} onInput={change} />
        <Hint of={hint} />
      </label>
    )
  }
  if (kind === 'text') {
    return (
      <label>
        <span>{label}</span>
        <input value={value} placeholder="default" onInput={change} />
        <Hint of={hint} />
      </label>
    )
  }
  return (
    <label>
      <span>{label}</span>
      <select value={value} onChange={change}>
        <option value="">default</option>
        {(kind === 'switch' ? ['true', 'false'] : choices).map((choice) => (
          <option key={choice}>{choice}</option>
        ))}
      </select>
      <Hint of={hint} />
    </label>
  )
}

function Hint({ of }: { readonly of: string }) {
  return of ? <small class="dim">{of}</small> : null
}
