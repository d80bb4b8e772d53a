import type { ReadonlySignal } from '@preact/signals'
import { useAction } from './action.ts'
import { ErrorText } from './error-text.tsx'

interface LoadMoreProps {
  readonly list: { readonly hasMore: ReadonlySignal<boolean>; more(): Promise<void> }
}

/** A button that loads the next page of a list; absent on the last page. */
export function LoadMore({ list }: LoadMoreProps) {
  const { isBusy, problem, run } = useAction()
  return (
    <>
      <ErrorText text={problem.value} />
      {list.hasMore.value && (
        <p>
          <button type="button" disabled={isBusy.value} onClick={() => void run(() => list.more())}>
            Load more
          </button>
        </p>
      )}
    </>
  )
}
