import type { ReadonlySignal } from '@preact/signals'
import { useDeed } from './deed.ts'
import { Refusal } from './refusal.tsx'

/** A list, newest first, of which more can be asked for. */
interface OlderProps {
  readonly list: { readonly hasMore: ReadonlySignal<boolean>; more(): Promise<void> }
}

/** Shows more of a list; nothing where there is no more. */
export function Older({ list }: OlderProps) {
  const { isBusy, problem, act } = useDeed()
  return (
    <>
      <Refusal of={problem.value} />
      {list.hasMore.value && (
        <p>
          <button type="button" disabled={isBusy.value} onClick={() => void act(() => list.more())}>
            Show older ones
          </button>
        </p>
      )}
    </>
  )
}
