import type { ReadonlySignal } from '@preact/signals'
import { useDeed } from './deed.ts'
import { Refusal } from './refusal.tsx'

interface OlderProps {
  readonly list: { readonly hasMore: ReadonlySignal<boolean>; more(): Promise<void> }
}

/** A button that loads the next page of a list; absent on the last page. */
export function Older({ list }: OlderProps) {
  const { isBusy, problem, act } = useDeed()
  return (
    <>
      <Refusal of={problem.value} />
      {list.hasMore.value && (
        <p>
          <button type="button" disabled={isBusy.value} onClick={() => void act(() => list.more())}>
            Load more
          </button>
        </p>
      )}
    </>
  )
}
