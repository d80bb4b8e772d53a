/** Where a job is, in a word with its colour. */
export function Status({ of }: { readonly of: string }) {
  return <span class={`status ${of}`}>{of.replace('_', ' ')}</span>
}
