import type { Signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useId } from 'preact/hooks'
import type { Field } from './schema.ts'

interface OptionsProps {
  readonly fields: readonly Field[]
  readonly values: Signal<Readonly<Record<string, string>>>
  readonly shown?: number
  /** Content above the options, such as the model. */
  readonly children?: ComponentChildren
}

/** Request options, generated from the schema of the endpoint. An empty field uses the default of the service. */
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
  const { name, label, hint } = field
  const id = useId()
  const change = ({ currentTarget }: { currentTarget: { value: string } }) => {
    values.value = { ...values.value, [name]: currentTarget.value }
  }
  return (
    <div>
      {/* biome-ignore lint/a11y/noLabelWithoutControl: the control is within, one component down. */}
      <label>
        <span>{label}</span>
        <Control field={field} value={values.value[name] ?? ''} hintId={hint ? id : undefined} onChange={change} />
      </label>
      {hint && (
        <small id={id} class="dim">
          {hint}
        </small>
      )}
    </div>
  )
}

interface ControlProps {
  readonly field: Field
  readonly value: string
  readonly hintId: string | undefined
  readonly onChange: (event: { currentTarget: { value: string } }) => void
}

function Control({ field: { kind, min, max, step, choices }, value, hintId, onChange }: ControlProps) {
  const range = min !== undefined && max !== undefined ? `${min} to ${max}` : 'default'
  if (kind === 'number') {
    const bounds = { min, max, step }
    return (
      <input type="number" {...bounds} value={value} placeholder={range} aria-describedby={hintId} onInput={onChange} />
    )
  }
  if (kind === 'text') return <input value={value} placeholder="default" aria-describedby={hintId} onInput={onChange} />
  return (
    <select value={value} aria-describedby={hintId} onChange={onChange}>
      <option value="">default</option>
      {(kind === 'switch' ? ['true', 'false'] : choices).map((choice) => (
        <option key={choice}>{choice}</option>
      ))}
    </select>
  )
}
