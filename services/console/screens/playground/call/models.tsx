import type { Signal } from '@preact/signals'
import { modelsFor } from '#services/console/screens/playground/served.ts'

interface ModelChoiceProps {
  /** What it must be able to do, such as `chat`. */
  readonly capability: string
  readonly model: Signal<string>
  readonly label?: string
}

/** Which model a call is for, of those that can do it. */
export function ModelChoice({ capability, model, label = 'Model' }: ModelChoiceProps) {
  return (
    <label>
      <span>{label}</span>
      <select
        value={model.value}
        onChange={({ currentTarget }) => {
          model.value = currentTarget.value
        }}
      >
        {modelsFor(capability).map(({ id }) => (
          <option key={id}>{id}</option>
        ))}
      </select>
    </label>
  )
}
