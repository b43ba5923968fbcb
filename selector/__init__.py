"""From a sparse matrix to the storage format that makes its products quickest."""
