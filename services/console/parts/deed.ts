import { type Signal, useSignal } from '@preact/signals'
import { wordsOf } from '#services/console/api/client.ts'

/** Something that somebody does on a page. */
export interface Deed {
  readonly isBusy: Signal<boolean>
  /** Why it failed, as a sentence; empty: it has not. */
  readonly problem: Signal<string>
  /** Does it. @returns Whether it is done */
  act(work: () => Promise<void>): Promise<boolean>
}

/** What a component needs to do something and to say how that went. */
export function useDeed(): Deed {
  const isBusy = useSignal(false)
  const problem = useSignal('')
  const act = async (work: () => Promise<void>) => {
    isBusy.value = true
    problem.value = ''
    await work().catch((error: unknown) => {
      problem.value = wordsOf(error)
    })
    isBusy.value = false
    return problem.value === ''
  }
  return { isBusy, problem, act }
}
