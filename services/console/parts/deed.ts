import { type Signal, useSignal } from '@preact/signals'
import { wordsOf } from '#services/console/api/client.ts'

/** A request that a button or a form sends. */
export interface Deed {
  readonly isBusy: Signal<boolean>
  /** Error text of the last run, or an empty string. */
  readonly problem: Signal<string>
  /** @returns Whether the work succeeded */
  act(work: () => Promise<void>): Promise<boolean>
}

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
